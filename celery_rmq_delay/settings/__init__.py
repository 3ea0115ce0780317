"""The settings of an app: parsed once, validated in one place."""
