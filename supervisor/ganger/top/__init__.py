"""``ganger top``: what runs, on this host and elsewhere.

``processes`` reads titles and the figures of the kernel, ``stored`` the database, each without the other; ``model``
puts them together; ``draw`` makes lines of it, and ``screen`` has the terminal and its keys.
"""
