"""How turns and sweeps look and read, in notebooks and terminals alike; it knows no front end."""
