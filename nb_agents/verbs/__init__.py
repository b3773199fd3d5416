"""What a person can ask of runs, sweeps and sessions: each verb is one function for all doors."""
