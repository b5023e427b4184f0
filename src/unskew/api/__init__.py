"""The public `Model`: create, fit, evaluate, recommend, save, load, export."""
