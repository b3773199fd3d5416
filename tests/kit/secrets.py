"""Keys and masks."""

from nb_agents.config.secret_names import is_distinctive
from nb_agents.config.secrets import Secret, secrets_of_team, snapshot
from nb_agents.masking import MIN_HELD, Mask, MaskedStream

__all__ = [
    "MIN_HELD",
    "Mask",
    "MaskedStream",
    "Secret",
    "is_distinctive",
    "secrets_of_team",
    "snapshot",
]
