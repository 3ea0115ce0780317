"""Operations on selections of tasks: freeze, claim, run in windows, report.

May import `models` and what is below it.
"""
