"""The material of tests: setups, cases, traces, records and ledgers; and sessions that misbehave on purpose."""
