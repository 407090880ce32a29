-- LISTEN: notifications carry the name of a queue, its first 500 characters.
LISTEN :"schema"
