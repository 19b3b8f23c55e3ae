"""Who is likeliest to hold the mistake behind a failure: functions of sglang, with the line and the reason in words."""
