"""Episodes: many in flight, of several suites, kept so that none is played twice."""
