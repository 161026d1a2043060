"""A cluster before the job: netlab, which emulates one, and doctor, which examines one."""

from tf_sparse_strategy.cluster.faults import Fault
from tf_sparse_strategy.cluster.namespaces import NetlabError, check_machine
from tf_sparse_strategy.cluster.netlab import Netlab, Result

__all__ = ["Fault", "Netlab", "NetlabError", "Result", "check_machine"]
