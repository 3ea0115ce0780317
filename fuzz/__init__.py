"""Coverage-guided fuzzing with atheris, in addition to hypothesis in the test suite: `make fuzz`."""
