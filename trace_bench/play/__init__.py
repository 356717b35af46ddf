"""Runs episodes of several suites concurrently, and stores them so that none runs twice."""
