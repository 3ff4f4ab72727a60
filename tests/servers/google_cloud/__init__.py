"""A stateful fake of Google's control plane: a project, its services, and what goes wrong with them."""

from servers.google_cloud.cloud import APIS, Call, Fault, GoogleCloud, permission_of
from servers.google_cloud.refusals import Refusal

__all__ = ["APIS", "Call", "Fault", "GoogleCloud", "Refusal", "permission_of"]
