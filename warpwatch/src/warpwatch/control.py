"""A positive control: a race and an overrun that are planted here must be found before anything is called clean."""

from functools import cache

import numpy as np

from warpwatch.launch import run

TEXT = """.version 8.3
.target sm_90
.address_size 64
.visible .entry planted(.param .u64 out)
{{
.reg .b32 %r<4>; .reg .b64 %rd<4>;
.shared .align 4 .b8 s[256];
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
mov.u64 %rd3, s;
add.s64 %rd3, %rd3, %rd2;
st.shared.u32 [%rd3], %r1;
{barrier}
xor.b32 %r2, %r1, 63;
mul.wide.u32 %rd2, %r2, 4;
mov.u64 %rd3, s;
add.s64 %rd3, %rd3, %rd2;
ld.shared.u32 %r3, [%rd3];
add.s64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1], %r3;
ret;
}}
"""
CASES = {"": (64, ["race"]), "bar.sync 0;": (63, ["out of bounds"]), "bar.sync  0;": (64, [])}


@cache
def check():
    """Raise a RuntimeError unless the race is found, the overrun too, and nothing in the kernel that is right."""
    for barrier, (size, kinds) in CASES.items():
        found = [each.kind for each in run(TEXT.format(barrier=barrier), 1, 64, np.zeros(size, "i4")).findings]
        if found != kinds:
            raise RuntimeError(f"warpwatch does not work here: a planted kernel gave {found}, and not {kinds}")
