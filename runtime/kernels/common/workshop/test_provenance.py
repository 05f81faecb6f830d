"""Reading machine code by hand-written examples: registers, spills, joins, loops that make lanes uniform."""

import pytest

from runtime.kernels.common.workshop.provenance import analyse
from runtime.kernels.common.workshop.sass import Instruction, Kernel, Parameter, _code

HEADER = ".text.k:\n"


def kernel(*lines):
    """A kernel from lines such as ".L_x_1:" or "@P0 BRA `(.L_x_1)"; parameters of 8 bytes from 0x210."""
    text, address = HEADER, 0
    for line in lines:
        if line.endswith(":"):
            text += line + "\n"
            continue
        text += f"        /*{address:04x}*/                   {line} ;\n"
        address += 16
    parameters = tuple(Parameter(i, 8 * i, 8) for i in range(4))
    return Kernel("k", tuple(_code(text)["k"]), parameters, 0x210, 128, 32, 0, 0)


def loads(*lines):
    """(ordinals, waited) of every access."""
    return [(sorted(a.ordinals), a.waited) for a in analyse(kernel(*lines)).accesses]


@pytest.mark.parametrize(
    ("text", "results", "sources"),
    [
        ("LDG.E.128 R4, desc[UR6][R2.64+0x10]", "R4 R5 R6 R7", "UR6 R2 R3"),
        ("IMAD.WIDE R2, R4, 0x2, R8", "R2 R3", "R4 R8 R9"),
        ("LEA R10, P0, R8, UR8, 0x1", "R10", "R8 UR8"),
        ("ULDC.64 UR4, c[0x0][0x218]", "UR4 UR5", ""),
        ("ISETP.GE.AND P0, PT, R3, R4, PT", "", "R3 R4"),
        ("STG.E.U16 desc[UR6][R4.64], R2", "", "UR6 R4 R5 R2 R3 R4 R5"),
        ('STL.64 [R1+0x8], R2 (*"SpillRefill"*)', "S8 S12", "R2 R3"),
        ('LDL.LU R7, [R1] (*"SpillRefill"*)', "R7", "S0"),
    ],
)
def test_registers_of_an_instruction(text, results, sources):
    instruction = kernel(text).code[0]
    assert list(instruction.results) == results.split()
    assert set(instruction.sources) >= set(sources.split())


def test_an_address_keeps_its_parameter_through_arithmetic_and_spills():
    assert loads(
        "LDC.64 R2, c[0x0][0x218]",
        "IMAD.WIDE R4, R9, 0x4, R2",
        "STL.64 [R1+0x10], R4",
        "CS2R R4, SRZ",
        "ACQBULK",
        "LDL.64 R6, [R1+0x10]",
        "LDG.E R8, desc[UR4][R6.64]",
        "EXIT",
    ) == [([1], True)]


def test_a_loaded_value_used_as_an_index_adds_nothing():
    assert loads(
        "LDC.64 R2, c[0x0][0x210]",
        "LDG.E R5, desc[UR4][R2.64]",
        "LDC.64 R6, c[0x0][0x220]",
        "IMAD.WIDE R8, R5, 0x4, R6",
        "ACQBULK",
        "LDG.E R9, desc[UR4][R8.64]",
        "EXIT",
    ) == [([0], False), ([2], True)]


def test_a_wait_on_one_path_is_not_a_wait():
    assert loads(
        "LDC.64 R2, c[0x0][0x210]",
        "@P0 BRA `(.L_x_1)",
        "ACQBULK",
        ".L_x_1:",
        "LDG.E R5, desc[UR4][R2.64]",
        "EXIT",
    ) == [([0], False)]


def test_a_barrier_register_that_is_reused_joins_where_it_was_last_set():
    code = kernel(
        "BSSY B0, `(.L_x_1)",
        "@P0 BRA `(.L_x_2)",
        ".L_x_2:",
        "BSYNC B0",
        ".L_x_1:",
        "ACQBULK",
        "BSSY B0, `(.L_x_3)",
        "BSYNC B0",
        ".L_x_3:",
        "EXIT",
    )
    bsyncs = [i for i, x in enumerate(code.code) if x.base == "BSYNC"]
    assert [code.successors()[i] for i in bsyncs] == [[3], [6]]
    assert analyse(code).exits_unwaited == ()


def test_operands_made_uniform_lane_by_lane_do_not_keep_what_was_there_before():
    assert loads(
        "ULDC.64 UR10, c[0x0][0x228]",
        "UIADD3 UR4, UR10, 0x1, URZ",
        "LDC.64 R16, c[0x0][0x210]",
        "ACQBULK",
        ".L_x_1:",
        "@P0 ELECT P1, URZ, PT",
        "@P1 R2UR UR10, R16",
        "@P1 R2UR UR11, R17",
        "UBLKCP.S.G [UR14], [UR10], UR7",
        "@P0 BRA.U.ANY `(.L_x_1)",
        "EXIT",
    ) == [([0], True)]


def test_a_tensor_map_is_found_at_its_place_among_the_parameters():
    assert loads(
        "ULDC.64 UR6, c[0x0][0x198]",
        "UIADD3 UR6, UP0, UR6, 0x10, URZ",
        "UIADD3.X UR7, URZ, UR7, URZ, UP0, !UPT",
        "UTMALDG.2D [UR16], [UR6], desc[URZ]",
        "ACQBULK",
        "EXIT",
    ) == [([2], False)]


def test_code_that_nothing_reaches_is_ignored():
    assert loads("EXIT", "LDG.E R5, desc[UR4][R2.64]") == []
    assert isinstance(kernel("EXIT").code[0], Instruction)
