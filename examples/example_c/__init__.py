"""Example C: shutdown. What Ctrl-C does to jobs that wait, and to one that computes."""
