"""Activations to mergeable statistics, to tables, SQL and reports."""
