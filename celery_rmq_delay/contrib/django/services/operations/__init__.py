"""Operations on selections of tasks: frozen, claimed, run window by window, reported.

May import `models` and what is below it.
"""
