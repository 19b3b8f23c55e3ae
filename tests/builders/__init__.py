"""What tests are made from: setups, cases, traces, records and ledgers; and sessions that misbehave on purpose."""
