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
    #[error("the script needs the target: write iscsi://HOST/TARGET/LUN")]
    NoTarget,
    /// The machine has no such transport, or nobody has tried it.
    #[error("there is no script for {0} there: see nvme.md and roce.md, or use iscsi://")]
    Transport(Transport),
}

/// The script that attaches a disk there.
///
/// # Errors
/// Something is missing in the address, or is not for that machine.
pub fn script(platform: Platform, address: &Address) -> Result<String, ScriptError> {
    let transport = address.transport.unwrap_or(Transport::Iscsi);
    let possible = match platform {
        Platform::Esxi => matches!(transport, Transport::Iscsi | Transport::Iser),
        Platform::Windows | Platform::Libvirt => transport == Transport::Iscsi,
    };
    if !possible {
        return Err(ScriptError::Transport(transport));
    }
    let target = address.name.as_deref().ok_or(ScriptError::NoTarget)?;
    let port = address.port.unwrap_or(3260);
    Ok(match platform {
        Platform::Esxi => {
            esxi(transport, &place(&address.host, port), target, address.user.as_deref())
        }
        Platform::Windows => windows(&address.host, port, target, address.user.as_deref()),
        Platform::Libvirt => libvirt(address, port, target),
    })
}

fn esxi(transport: Transport, portal: &str, target: &str, user: Option<&str>) -> String {
    let (adapter, kind) = match transport {
        Transport::Iser => ("esxcli rdma iser add", "iSER"),
        _ => ("esxcli iscsi software set --enabled=true", "iSCSI Software Adapter"),
    };
    let chap = user.map_or_else(String::new, |user| {
        format!(
            "printf 'CHAP secret of {user}: '; stty -echo; read -r secret; stty echo; echo\n\
             esxcli iscsi adapter auth chap set --adapter=\"$adapter\" --direction=uni --level=required --authname={user} --secret=\"$secret\"\n"
        )
    });
    format!(
        "#!/bin/sh\n# Run in the ESXi shell. Not tried on a real ESXi host; see vmware.md.\nset -e\n{adapter}\n\
         adapter=$(esxcli iscsi adapter list | awk '/{kind}/ {{print $1; exit}}')\n\
         [ -n \"$adapter\" ] || {{ echo 'there is no {kind}' >&2; exit 1; }}\n\
         # The target has to let this name in:\n\
         esxcli iscsi adapter get --adapter=\"$adapter\" | grep -i 'name: iqn'\n\
         # Before the first rescan: it applies when a device is claimed.\n\
         esxcli storage nmp satp rule add --satp=VMW_SATP_ALUA --psp=VMW_PSP_RR \\\n    \
         --vendor=LUNET --model='VIRTUAL DISK' --claim-option=tpgs_on --description=lunet || true\n{chap}\
         # Discovery finds the other portals of {target} by itself.\n\
         esxcli iscsi adapter discovery sendtarget add --adapter=\"$adapter\" --address={portal}\n\
         esxcli storage core adapter rescan --adapter=\"$adapter\"\n\
         esxcli storage core path list | grep -B 12 -A 4 'Target: .*{target}' || esxcli storage core path list\n"
    )
}

fn windows(host: &str, port: u16, target: &str, user: Option<&str>) -> String {
    let chap = user.map_or_else(String::new, |user| {
        format!(
            "$secret = (New-Object Net.NetworkCredential('', (Read-Host -AsSecureString 'CHAP secret of {user} (12 to 16 characters)'))).Password\n\
             $connect += @{{ AuthenticationType = 'ONEWAYCHAP'; ChapUsername = '{user}'; ChapSecret = $secret }}\n"
        )
    });
    format!(
        "# Run in PowerShell as administrator. Not tried on a real Windows host; see windows.md.\n\
         $ErrorActionPreference = 'Stop'\n\
         Set-Service msiscsi -StartupType Automatic\nStart-Service msiscsi\n\
         # The target has to let this name in:\n(Get-InitiatorPort | Where-Object ConnectionType -eq iSCSI).NodeAddress\n\
         $name = '{target}'\n\
         New-IscsiTargetPortal -TargetPortalAddress {host} -TargetPortalPortNumber {port} | Out-Null\n\
         $connect = @{{ NodeAddress = $name; TargetPortalAddress = '{host}'; TargetPortalPortNumber = {port}; IsPersistent = $true }}\n\
         # For several portals, first: Install-WindowsFeature Multipath-IO; Enable-MSDSMAutomaticClaim -BusType iSCSI; a reboot.\n\
         if ((Get-Command mpclaim -ErrorAction SilentlyContinue)) {{ $connect.IsMultipathEnabled = $true }}\n{chap}\
         Connect-IscsiTarget @connect\n\
         Get-IscsiSession | Where-Object TargetNodeAddress -eq $name | Get-Disk\n"
    )
}

fn libvirt(address: &Address, port: u16, target: &str) -> String {
    let unit = address.unit.unwrap_or(0);
    let xml = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
    let auth = address.user.as_deref().map_or_else(String::new, |user| {
        let user = xml(user);
        format!(
            "    <!-- virsh secret-define with <secret ephemeral='no' private='yes'><usage type='iscsi'><target>{target}</target></usage></secret>,\n         \
             then virsh secret-set-value UUID --interactive -->\n    \
             <auth username='{user}'>\n      <secret type='iscsi' usage='{target}'/>\n    </auth>\n"
        )
    });
    format!(
        "<!-- virsh attach-device GUEST disk.xml --config; QEMU logs in by itself. For a volume with blocks of 4096 bytes add\n     \
         <blockio logical_block_size='4096' physical_block_size='4096'/>. -->\n\
         <disk type='network' device='disk'>\n  <driver name='qemu' type='raw' discard='unmap'/>\n  \
         <source protocol='iscsi' name='{target}/{unit}'>\n    <host name='{}' port='{port}'/>\n{auth}  </source>\n  \
         <target dev='vda' bus='virtio'/>\n</disk>\n",
        xml(&address.host)
    )
}
