"""A picture, rendered tile by tile as jobs: heavy work in child processes, and what the demo shows with it."""
