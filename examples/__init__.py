"""Examples, run from the repository's root: ``python -m examples.example_a.worker`` and so on."""
