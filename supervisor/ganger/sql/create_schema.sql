-- CREATE SCHEMA: the first step of an installation.
CREATE SCHEMA IF NOT EXISTS :"schema"
