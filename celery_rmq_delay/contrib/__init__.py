"""What belongs to other packages: each module imports the one it is named after."""
