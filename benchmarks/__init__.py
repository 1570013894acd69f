"""Benchmarks: each compares with a plain implementation in the same run and saves a record."""
