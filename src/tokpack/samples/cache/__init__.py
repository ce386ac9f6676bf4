"""Index arrays kept in a folder by what they were made of."""
