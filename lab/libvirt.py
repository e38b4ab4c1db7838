#!/usr/bin/env python3
"""Puts the libvirt XML of the manual into whole domains: libvirt.py DOCS OUT

Every <disk> of the manual's pages becomes OUT/good-PAGE-N.xml, and so does every piece that the manual says may stand in one
(`<auth>`, `<blockio>`, ...), in the place that it belongs to. Of each there is a bad-PAGE-N-M.xml with one word misspelled.
"""
import pathlib
import re
import sys

DOMAIN = """<domain type='kvm'>
  <name>lab</name>
  <memory>1048576</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
{}
  </devices>
</domain>
"""
DISK = """<disk type='network' device='disk'>
  <driver name='qemu' type='raw'/>
  <source protocol='iscsi' name='iqn.2026-11.local.lunet:demo/0'>
    <host name='192.0.2.10' port='3260'/>
{}
  </source>
  <target dev='vda' bus='virtio'/>
{}
</disk>"""
# What a piece of XML belongs into, by its first element: 0 is <source>, 1 is <disk> itself.
PLACES = {'auth': 0, 'initiator': 0, 'blockio': 1, 'driver': 1}


def disks(text):
    """Every disk of a page, in the order of the page."""
    yield from re.findall(r'<disk\b.*?</disk>', text, re.S)
    # Pieces within a sentence: those that are a whole element, and not the mere name of one.
    for piece in re.findall(r'`(<[a-z]+ [^`]*>)`', text):
        name = re.match(r'<(\w+)', piece).group(1)
        assert name in PLACES, f'where does {piece} belong? Say it in PLACES'
        parts = ['', '']
        parts[PLACES[name]] = piece
        yield DISK.format(*parts)


def mistakes(disk):
    """The disk with one word misspelled: a name of an attribute, of an element, and a value that is one of a few."""
    words = {match.group(1) for match in re.finditer(r'(?:<| )([a-z]\w*)(?==|[ />])', disk)} - {'disk'}
    for word in sorted(words):
        yield re.sub(rf'(?<=[</ ]){word}(?==|[ />])', word + 'x', disk)


docs, out = map(pathlib.Path, sys.argv[1:])
for page in sorted(docs.glob('*.md')):
    text = page.read_text()
    if 'libvirt' not in text:
        continue
    for n, disk in enumerate(disks(text)):
        (out / f'good-{page.stem}-{n}.xml').write_text(DOMAIN.format(disk))
        for m, bad in enumerate(mistakes(disk)):
            (out / f'bad-{page.stem}-{n}-{m}.xml').write_text(DOMAIN.format(bad))
