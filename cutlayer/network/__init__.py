"""A run over clients on other machines."""
