"""Actions of operators: one function per action."""
