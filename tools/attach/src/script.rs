//! The same for machines that lunet does not run on: scripts to run there, which follow the pages vmware.md, windows.md and
//! attach.md.

use crate::address::{Address, Transport, place};

/// Whom a script is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// VMware ESXi: a shell script.
    Esxi,
    /// Windows: PowerShell.
    Windows,
    /// libvirt: XML of a disk.
    Libvirt,
}

/// Why there is no script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The address has no name.
    #[error(
        "the script needs the target or subsystem: write iscsi://HOST/TARGET/LUN, or nvme-tcp://HOST/NQN"
    )]
    NoTarget,
    /// The machine has no such transport.
    #[error("there is no script for {transport}: {why}")]
    Transport {
        /// What was asked for.
        transport: Transport,
        /// Why there is none, and what else there is.
        why: &'static str,
    },
}

/// The script that attaches a disk there.
///
/// # Errors
/// Something is missing in the address, or is not for that machine.
pub fn script(platform: Platform, address: &Address) -> Result<String, ScriptError> {
    let transport = address.transport.unwrap_or(Transport::Iscsi);
    if let Some(why) = lacks(platform, transport) {
        return Err(ScriptError::Transport { transport, why });
    }
    let target = address.name.as_deref().ok_or(ScriptError::NoTarget)?;
    let port = address.port.unwrap_or(if transport.is_nvme() { 4420 } else { 3260 });
    Ok(match platform {
        Platform::Esxi if transport.is_nvme() => esxi_nvme(transport, &address.host, port, target),
        Platform::Esxi => {
            esxi(transport, &place(&address.host, port), target, address.user.as_deref())
        }
        Platform::Windows => windows(&address.host, port, target, address.user.as_deref()),
        Platform::Libvirt => libvirt(address, port, target),
    })
}

/// Why a machine cannot be attached by a transport.
const fn lacks(platform: Platform, transport: Transport) -> Option<&'static str> {
    match (platform, transport) {
        (Platform::Esxi, _) | (_, Transport::Iscsi) => None,
        (Platform::Windows, Transport::Iser) => Some("Windows has no iSER: use iscsi://"),
        (Platform::Windows, _) => {
            Some("Windows has no host of NVMe over networks of its own: use iscsi://")
        }
        (Platform::Libvirt, Transport::Iser) => Some(
            "QEMU's initiator does without RDMA as libvirt starts it: use iscsi://, or attach the host",
        ),
        (Platform::Libvirt, _) => Some(
            "libvirt's own NVMe is for drives in the host: attach the host (`lunet attach` without --for), and give the machine the \
             disk, as libvirt.md shows",
        ),
    }
}

/// A word of a shell.
fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A word of PowerShell.
fn power(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A text in XML.
fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

fn esxi(transport: Transport, portal: &str, target: &str, user: Option<&str>) -> String {
    let (adapter, kind) = match transport {
        Transport::Iser => ("esxcli rdma iser add", "iSER"),
        _ => ("esxcli iscsi software set --enabled=true", "iSCSI Software Adapter"),
    };
    let (portal, target) = (shell(portal), shell(target));
    let chap = user.map_or_else(String::new, |user| {
        format!(
            r#"user={}
printf 'CHAP secret of %s: ' "$user"; stty -echo; read -r secret; stty echo; echo
esxcli iscsi adapter auth chap set --adapter="$adapter" --direction=uni --level=required --authname="$user" --secret="$secret"
"#,
            shell(user)
        )
    });
    format!(
        r#"#!/bin/sh
# Run in the ESXi shell. Not tried on a real ESXi host; see vmware.md and roce.md.
set -e
portal={portal}
target={target}
{adapter}
adapter=$(esxcli iscsi adapter list | awk '/{kind}/ {{print $1; exit}}')
[ -n "$adapter" ] || {{ echo 'there is no {kind}' >&2; exit 1; }}
# The target has to let this name in:
esxcli iscsi adapter get --adapter="$adapter" | grep -i 'name: iqn'
# Before the first rescan: it applies when a device is claimed.
esxcli storage nmp satp rule add --satp=VMW_SATP_ALUA --psp=VMW_PSP_RR \
    --vendor=LUNET --model='VIRTUAL DISK' --claim-option=tpgs_on --description=lunet || true
{chap}# Discovery finds the other portals of the target by itself.
esxcli iscsi adapter discovery sendtarget add --adapter="$adapter" --address="$portal"
esxcli storage core adapter rescan --adapter="$adapter"
esxcli storage core path list | grep -F -B 12 -A 4 "$target" || esxcli storage core path list
"#
    )
}

fn esxi_nvme(transport: Transport, host: &str, port: u16, nqn: &str) -> String {
    let (kind, tag) = match transport {
        Transport::NvmeRdma => ("RDMA", "NVMeRDMA"),
        _ => ("TCP", "NVMeTCP"),
    };
    let (host, nqn) = (shell(host), shell(nqn));
    format!(
        r#"#!/bin/sh
# Run in the ESXi shell (ESXi 7.0 U3 or later), with the network card and the VMkernel adapter that lead to the server:
#     sh attach.sh vmnic4 vmk1
# Not tried on a real ESXi host; see roce.md and nvme.md. Blocks of the namespace must have 512 bytes.
set -e
nic=${{1:?the network card, as vmnic4}}
vmk=${{2:?the VMkernel adapter, as vmk1}}
address={host}
nqn={nqn}
esxcli network ip interface tag add --interface-name="$vmk" --tagname={tag} || true
esxcli nvme fabrics enable --protocol {kind} --device "$nic" || true
adapter=$(esxcli nvme adapter list | awk '/{kind}/ {{print $1; exit}}')
[ -n "$adapter" ] || {{ echo 'there is no adapter for NVMe over {kind}' >&2; exit 1; }}
# The subsystem has to let this name in:
esxcli nvme info get
# Discovery shows the other portals; repeat the next line with each of them.
esxcli nvme fabrics discover --adapter "$adapter" --ip-address "$address" --port-number {port}
# It is persistent: ESXi connects again when it starts.
esxcli nvme fabrics connect --adapter "$adapter" --ip-address "$address" --port-number {port} --subsystem-nqn "$nqn"
esxcli nvme namespace list
"#
    )
}

fn windows(host: &str, port: u16, target: &str, user: Option<&str>) -> String {
    let (host, target) = (power(host), power(target));
    let chap = user.map_or_else(String::new, |user| {
        format!(
            r#"$user = {}
$secret = Read-Host -AsSecureString "CHAP secret of $user (12 to 16 characters)"
$secret = (New-Object Net.NetworkCredential('', $secret)).Password
$connect += @{{ AuthenticationType = 'ONEWAYCHAP'; ChapUsername = $user; ChapSecret = $secret }}
"#,
            power(user)
        )
    });
    format!(
        r#"# Run in PowerShell as administrator. Not tried on a real Windows host; see windows.md.
$ErrorActionPreference = 'Stop'
Set-Service msiscsi -StartupType Automatic
Start-Service msiscsi
# The target has to let this name in:
(Get-InitiatorPort | Where-Object ConnectionType -eq iSCSI).NodeAddress
$name = {target}
$portal = {host}
New-IscsiTargetPortal -TargetPortalAddress $portal -TargetPortalPortNumber {port} | Out-Null
$connect = @{{ NodeAddress = $name; TargetPortalAddress = $portal; TargetPortalPortNumber = {port}; IsPersistent = $true }}
# For several portals, first: Install-WindowsFeature Multipath-IO; Enable-MSDSMAutomaticClaim -BusType iSCSI; a reboot.
if (Get-Command mpclaim -ErrorAction SilentlyContinue) {{ $connect.IsMultipathEnabled = $true }}
{chap}Connect-IscsiTarget @connect
Get-IscsiSession | Where-Object TargetNodeAddress -eq $name | Get-Disk
"#
    )
}

fn libvirt(address: &Address, port: u16, target: &str) -> String {
    let unit = address.unit.unwrap_or(0);
    let target = xml(target);
    let auth = address.user.as_deref().map_or_else(String::new, |user| {
        format!(
            r"    <!-- Its secret: `virsh secret-define` with
           <secret ephemeral='no' private='yes'><usage type='iscsi'><target>{target}</target></usage></secret>
         and `virsh secret-set-value`, which can ask for it. -->
    <auth username='{}'>
      <secret type='iscsi' usage='{target}'/>
    </auth>
",
            xml(user)
        )
    });
    format!(
        r"<!-- For `virsh attach-device GUEST disk.xml`: QEMU logs in by itself. For a volume with blocks of 4096 bytes add
     <blockio logical_block_size='4096' physical_block_size='4096'/>. -->
<disk type='network' device='disk'>
  <driver name='qemu' type='raw' discard='unmap'/>
  <source protocol='iscsi' name='{target}/{unit}'>
    <host name='{}' port='{port}'/>
{auth}  </source>
  <target dev='vda' bus='virtio'/>
</disk>
",
        xml(&address.host)
    )
}
