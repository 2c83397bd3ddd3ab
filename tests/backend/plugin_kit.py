"""Plugins for tests: written as a vendor would, in C from the header alone."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ral_trace.backend import plugins

SOURCE = r"""
#include "ral_plugin.h"

#include <string.h>

#ifndef INIT
#define INIT return RAL_OK;
#endif
#ifndef DESCRIBE
#define DESCRIBE
#endif
#ifndef TABLE_VERSION
#define TABLE_VERSION RAL_PLUGIN_ABI_VERSION
#endif
#ifndef TABLE_SIZE
#define TABLE_SIZE sizeof(ral_plugin)
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef ENTRY
#define ENTRY ral_plugin_entry
#endif

static const ral_host* the_host;
static int32_t shutdowns;

static int init(const ral_host* host, char* error, size_t error_size) {
  the_host = host;
  (void)error;
  (void)error_size;
  INIT
}

static void shut_down(void) { ++shutdowns; }
static int device_count(void) { return DEVICES; }

static ral_descriptor device(void) {
  ral_descriptor d;
  memset(&d, 0, sizeof d);
  d.struct_size = sizeof d;
  strcpy(d.name, "My Chip 1000");
  d.memory_bytes = UINT64_C(1) << 28;
  d.alignment = 256;
  d.max_handles_pf = 16;
  d.max_handles_vf = 8;
  d.domains = 1;
  d.dtypes = RAL_DTYPE_BIT(RAL_FLOAT32);
  d.pipelines = RAL_PIPELINE_COMPUTE;
  DESCRIBE
  return d;
}

static int describe(int32_t index, ral_descriptor* out) {
  const ral_descriptor d = device();
  (void)index;
  memcpy(out, &d, out->struct_size < sizeof d ? out->struct_size : sizeof d);
  out->struct_size = d.struct_size;
  return RAL_OK;
}

/* For the test to call: news from the chip. */
RAL_PLUGIN_EXPORT int plug(int32_t* number) {
  const ral_descriptor d = device();
  return the_host->announce(the_host, 7, &d, number);
}
RAL_PLUGIN_EXPORT int unplug(int32_t number, const char* reason) {
  return the_host->withdraw(the_host, number, reason);
}
RAL_PLUGIN_EXPORT const char* last_error(void) { return the_host->last_error(the_host); }
RAL_PLUGIN_EXPORT const ral_host* host_table(void) { return the_host; }

/* Memory through the table. */
RAL_PLUGIN_EXPORT int take(int32_t number, uint64_t bytes, uint64_t* buffer, uint64_t* address) {
  return the_host->alloc(the_host, number, bytes, buffer, address);
}
RAL_PLUGIN_EXPORT int give(uint64_t buffer) { return the_host->free(the_host, buffer); }
RAL_PLUGIN_EXPORT int move(uint64_t to, uint64_t to_offset, uint64_t from, uint64_t from_offset, uint64_t bytes) {
  return the_host->copy(the_host, to, to_offset, from, from_offset, bytes);
}
RAL_PLUGIN_EXPORT int check(int32_t number, uint64_t address, uint64_t bytes) {
  return the_host->check(the_host, number, address, bytes);
}

#ifdef REGIONS
/* Memory of the chip's own: one piece of 64 MiB, handed out once for each device. */
static _Alignas(4096) char chip_memory[2][64 << 20];
static int chip_taken[2];
static int reserve(int32_t index, uint64_t length, ral_region* region) {
  const int which = index == 7;
  if (chip_taken[which] || length > sizeof chip_memory[which]) return RAL_FAILED;
  chip_taken[which] = 1;
  region->struct_size = sizeof *region;
  region->domain = 0;
  region->handle = 100 + (uint64_t)which;
  region->address = (uint64_t)(uintptr_t)chip_memory[which];
  region->length = length;
  return RAL_OK;
}
static void release(int32_t index, const ral_region* region) {
  if (region->handle == 100u + (index == 7)) chip_taken[index == 7] = 0;
}
RAL_PLUGIN_EXPORT int inside(int32_t which, uint64_t address) {
  const uint64_t begin = (uint64_t)(uintptr_t)chip_memory[which];
  return address >= begin && address < begin + sizeof chip_memory[which];
}
RAL_PLUGIN_EXPORT int taken(int32_t which) { return chip_taken[which]; }
#endif

#ifdef COPY
/* A copy engine that counts, and answers COPY. */
static int32_t copies[3];
static int copy_bytes(int32_t index, int32_t direction, uint64_t to, uint64_t from, uint64_t bytes) {
  (void)index;
  ++copies[direction];
  memcpy((void*)(uintptr_t)to, (const void*)(uintptr_t)from, bytes);
  return COPY;
}
RAL_PLUGIN_EXPORT int32_t copied(int32_t direction) { return copies[direction]; }
#endif

/* A kernel: out = a + b, float32, contiguous. */
RAL_PLUGIN_EXPORT int my_add(const ral_call* call) {
  const float* a = (const float*)call->args[0].as.tensors->data;
  const float* b = (const float*)call->args[1].as.tensors->data;
  float* out = (float*)call->outputs[0].data;
  int64_t count = 1;
  int32_t i;
  int64_t n;
  if (call->args[1].tag != RAL_TENSOR || call->args[2].as.i != 1) return RAL_DECLINED;
  for (i = 0; i < call->outputs[0].ndim; ++i) count *= call->outputs[0].sizes[i];
  for (n = 0; n < count; ++n) out[n] = a[n] + b[n] + PLUS;
  return RAL_OK;
}

RAL_PLUGIN_EXPORT const ral_plugin* ENTRY(void) {
  static ral_plugin table;
  table.struct_size = TABLE_SIZE;
  table.abi_version = TABLE_VERSION;
  strcpy(table.vendor, VENDOR);
  strcpy(table.version, "2.5");
  table.init = init;
  table.shutdown = shut_down;
  table.device_count = device_count;
  table.describe = describe;
#ifdef REGIONS
  table.reserve = reserve;
  table.release = release;
#endif
#ifdef COPY
  table.copy = copy_bytes;
#endif
  return &table;
}
"""

KERNEL = {
    "op_name": "aten::add",
    "supported_dtypes": ["float32"],
    "min_shape_rank": 1,
    "max_shape_rank": 4,
    "requires_contiguous": True,
}


def write_plugin(folder: Path, name: str = "mychip", **fields: Any) -> Path:
    """A folder with plugin.json and the source, not built."""
    folder.mkdir(parents=True, exist_ok=True)
    library = f"lib{name}.so"
    content = {"name": name, "version": "2.5", "library": library, "sources": ["plugin.c"]} | fields
    (folder / "plugin.json").write_text(json.dumps(content))
    (folder / "plugin.c").write_text(SOURCE.replace("VENDOR)", f'"{name}")').replace("PLUS", "0"))
    return folder


def write_manifest(folder: Path, name: str = "mychip", **fields: Any) -> Path:
    """A kernel_manifest.json with one entry for aten::add."""
    entry = KERNEL | {"backend": name, "kernel_path": f"lib{name}.so:my_add"} | fields
    file = folder / "kernel_manifest.json"
    file.write_text(json.dumps({"vendor": name, "kernels": [entry]}))
    return file


def build(folder: Path, *flags: str, header: Path = plugins.INCLUDE, name: str = "mychip") -> Path:
    """The library, from C alone, with every warning that a vendor may have switched on."""
    library = folder / f"lib{name}.so"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC", f"-I{header}"]
    subprocess.run([*command, *flags, str(folder / "plugin.c"), "-o", str(library)], check=True)
    return library


def older_header(folder: Path) -> Path:
    """ral_plugin.h as it was in version 1.0: without what 1.1 has added at the end of the table."""
    text = (plugins.INCLUDE / "ral_plugin.h").read_text()
    text, removed = re.subn(r"  /\* Since 1\.1.*?(?=\} ral_plugin;)", "", text, flags=re.DOTALL)
    assert removed == 1
    text = text.replace("RAL_PLUGIN_ABI_MINOR 1u", "RAL_PLUGIN_ABI_MINOR 0u")
    (folder / "ral_plugin.h").write_text(text)
    return folder


def status(name: str) -> int:
    """The number of a ral_status, from the header."""
    found = re.search(rf"\b{name} = (\d+)", (plugins.INCLUDE / "ral_plugin.h").read_text())
    assert found is not None
    return int(found[1])


def clean_environment(folder: Path, **environment: str) -> dict[str, str]:
    """Of a program that sees only the plugins that the test made: nothing of this machine's user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAL_") or name == "RAL_TRACE_DIR"}
    return kept | {"XDG_CONFIG_HOME": str(folder / "config")} | environment


def python(program: str, environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    """A program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=180,
        check=False,
    )


def ralctl(words: Sequence[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """The real command."""
    return subprocess.run(
        [sys.executable, "-m", "ral_trace.backend.ralctl", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=180,
        check=False,
    )
