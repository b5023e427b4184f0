"""From files to a log: formats, columns, checks, the SQL of the preparation."""
