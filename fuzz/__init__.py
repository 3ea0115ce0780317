"""Coverage-guided fuzzing with atheris, beside what hypothesis does in the suite: `make fuzz`."""
