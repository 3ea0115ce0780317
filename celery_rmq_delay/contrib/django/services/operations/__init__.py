"""Operations on selections of tasks: freeze, claim, run in windows, report."""
