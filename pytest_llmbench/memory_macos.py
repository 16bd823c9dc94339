"""`phys_footprint` of a process on macOS, through `proc_pid_rusage` of libSystem.

The layout is that of `struct rusage_info_v4` in the SDK's <sys/resource.h> (macOS 10.14 and later). No other
flavour is used: later ones only append fields. Not needed, and never loaded, on other systems.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass

RUSAGE_INFO_V4 = 4
_COUNTERS = (
    "ri_user_time",
    "ri_system_time",
    "ri_pkg_idle_wkups",
    "ri_interrupt_wkups",
    "ri_pageins",
    "ri_wired_size",
    "ri_resident_size",
    "ri_phys_footprint",
    "ri_proc_start_abstime",
    "ri_proc_exit_abstime",
    "ri_child_user_time",
    "ri_child_system_time",
    "ri_child_pkg_idle_wkups",
    "ri_child_interrupt_wkups",
    "ri_child_pageins",
    "ri_child_elapsed_abstime",
    "ri_diskio_bytesread",
    "ri_diskio_byteswritten",
    "ri_cpu_time_qos_default",
    "ri_cpu_time_qos_maintenance",
    "ri_cpu_time_qos_background",
    "ri_cpu_time_qos_utility",
    "ri_cpu_time_qos_legacy",
    "ri_cpu_time_qos_user_initiated",
    "ri_cpu_time_qos_user_interactive",
    "ri_billed_system_time",
    "ri_serviced_system_time",
    "ri_logical_writes",
    "ri_lifetime_max_phys_footprint",
    "ri_instructions",
    "ri_cycles",
    "ri_billed_energy",
    "ri_serviced_energy",
    "ri_interval_max_phys_footprint",
    "ri_runnable_time",
)


class RusageInfoV4(ctypes.Structure):
    """`struct rusage_info_v4`: a UUID and 35 unsigned 64-bit counters, 296 bytes."""

    _fields_ = (("ri_uuid", ctypes.c_uint8 * 16), *((name, ctypes.c_uint64) for name in _COUNTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes now, and the most since the process started."""

    phys_footprint_bytes: int
    lifetime_max_phys_footprint_bytes: int


def footprint(pid: int) -> Footprint | None:
    """The footprint of `pid`, None where the process is gone.

    PermissionError for another user's process; OSError for whatever else the call answers.
    """
    info = RusageInfoV4()
    library = ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)
    if library.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(RUSAGE_INFO_V4), ctypes.byref(info)) != 0:
        code = ctypes.get_errno()
        if code == errno.ESRCH:
            return None
        raise OSError(code, f"proc_pid_rusage({pid}) failed")
    return Footprint(
        phys_footprint_bytes=info.ri_phys_footprint,
        lifetime_max_phys_footprint_bytes=info.ri_lifetime_max_phys_footprint,
    )
