"""Operations on selections of tasks: frozen, claimed, run window by window, reported."""
