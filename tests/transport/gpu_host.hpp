// A topology as hwloc writes it: two sockets, on the first a switch with a GPU (0000:02:00.0) and
// mlx5_0, and mlx5_1 behind a port of its own; on the second mlx5_2.
#pragma once

namespace millrace::testing {

inline constexpr const char* gpu_host = R"xml(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x3" complete_nodeset="0x3" allowed_cpuset="0x3" allowed_nodeset="0x3" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4" local_memory="1073741824"/>
   <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="6">
    <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="8"/>
   </object>
   <object type="Bridge" gp_index="20" bridge_type="0-1" depth="0" bridge_pci="0000:[00-1f]">
    <object type="Bridge" gp_index="21" bridge_type="1-1" depth="1" bridge_pci="0000:[01-03]" pci_busid="0000:00:01.0" pci_type="0604 [1000:c010] [1000:a096] b0" pci_link_speed="0.0">
     <object type="PCIDev" gp_index="22" pci_busid="0000:02:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0.0"/>
     <object type="PCIDev" gp_index="23" pci_busid="0000:03:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="0.0">
      <object type="OSDev" gp_index="24" name="mlx5_0" osdev_type="3"/>
     </object>
    </object>
    <object type="Bridge" gp_index="25" bridge_type="1-1" depth="1" bridge_pci="0000:[04-04]" pci_busid="0000:00:02.0" pci_type="0604 [1000:c010] [1000:a096] b0" pci_link_speed="0.0">
     <object type="PCIDev" gp_index="26" pci_busid="0000:04:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="0.0">
      <object type="OSDev" gp_index="27" name="mlx5_1" osdev_type="3"/>
     </object>
    </object>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="3">
   <object type="NUMANode" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="5" local_memory="1073741824"/>
   <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="7">
    <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="9"/>
   </object>
   <object type="Bridge" gp_index="28" bridge_type="0-1" depth="0" bridge_pci="0000:[80-9f]">
    <object type="PCIDev" gp_index="29" pci_busid="0000:81:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="0.0">
     <object type="OSDev" gp_index="30" name="mlx5_2" osdev_type="3"/>
    </object>
   </object>
  </object>
 </object>
</topology>
)xml";

} // namespace millrace::testing
