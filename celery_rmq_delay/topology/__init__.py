"""Plans of broker objects as plain data, and the steps from one plan to another."""
