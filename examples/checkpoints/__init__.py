"""A computation of minutes that is stopped again and again, and goes on from its checkpoint."""
