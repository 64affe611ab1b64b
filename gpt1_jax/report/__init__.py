"""The paper's numbers, tables and figures."""
