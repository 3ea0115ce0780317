"""``python -m benchmarks``: the retry round trip, the one benchmark there is."""

from benchmarks.retry_roundtrip import main

if __name__ == "__main__":
    main()
