#!/usr/bin/env python3
"""Reserves a logical unit as another host would: reserve.py PORTAL TARGET LUN INITIATOR (libiscsi, SPC-4 6.14)."""
import ctypes
import sys

KEY = 0x1234
REGISTER, RESERVE = 0, 1
WRITE_EXCLUSIVE = 1


class Parameters(ctypes.Structure):
    """struct scsi_persistent_reserve_out_basic"""
    _fields_ = [('key', ctypes.c_uint64), ('new', ctypes.c_uint64), ('spec_i_pt', ctypes.c_uint8),
                ('all_tg_pt', ctypes.c_uint8), ('aptpl', ctypes.c_uint8)]


portal, target, lun, initiator = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
iscsi = ctypes.CDLL('libiscsi.so.7')
iscsi.iscsi_create_context.restype = ctypes.c_void_p
iscsi.iscsi_persistent_reserve_out_sync.restype = ctypes.POINTER(ctypes.c_int)
context = ctypes.c_void_p(iscsi.iscsi_create_context(initiator.encode()))
iscsi.iscsi_set_targetname(context, target.encode())
iscsi.iscsi_set_session_type(context, 2)
assert iscsi.iscsi_full_connect_sync(context, portal.encode(), lun) == 0, 'no session'
for action, kind, parameters in [(REGISTER, 0, Parameters(0, KEY)), (RESERVE, WRITE_EXCLUSIVE, Parameters(KEY))]:
    task = iscsi.iscsi_persistent_reserve_out_sync(context, lun, action, 0, kind, ctypes.byref(parameters))
    assert task and task[0] == 0, f'service action {action} fails'
iscsi.iscsi_logout_sync(context)
