"""Optimizers, local rules, global updates and momentum fusion."""
