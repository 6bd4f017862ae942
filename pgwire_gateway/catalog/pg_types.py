"""The types of pg_type: PostgreSQL 15's own, with their oids.

A line at the margin is a type: typname, oid, typlen, typbyval, typtype, typcategory,
typispreferred, typalign, typstorage, typcollation, typelem, typarray, and the name that
format_type gives it (with `_` for a space). Below it stand its functions with their oids: input,
output, receive, send, and those of its modifier. Types that DuckDB has no values of are left out
but for those that the catalog itself is made of. Source: PostgreSQL's pg_type.dat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PG_TYPES = """
bool 16 1 t b B t c p 0 0 1000 boolean
    boolin:1242 boolout:1243 boolrecv:2436 boolsend:2437
bytea 17 -1 f b U f i x 0 0 1001 bytea
    byteain:1244 byteaout:31 bytearecv:2412 byteasend:2413
char 18 1 t b Z f c p 0 0 1002 "char"
    charin:1245 charout:33 charrecv:2434 charsend:2435
name 19 64 f b S f c p 950 18 1003 name
    namein:34 nameout:35 namerecv:2422 namesend:2423
int8 20 8 t b N f d p 0 0 1016 bigint
    int8in:460 int8out:461 int8recv:2408 int8send:2409
int2 21 2 t b N f s p 0 0 1005 smallint
    int2in:38 int2out:39 int2recv:2404 int2send:2405
int2vector 22 -1 f b A f i p 0 21 1006 int2vector
    int2vectorin:40 int2vectorout:41 int2vectorrecv:2410 int2vectorsend:2411
int4 23 4 t b N f i p 0 0 1007 integer
    int4in:42 int4out:43 int4recv:2406 int4send:2407
regproc 24 4 t b N f i p 0 0 1008 regproc
    regprocin:44 regprocout:45 regprocrecv:2444 regprocsend:2445
text 25 -1 f b S t i x 100 0 1009 text
    textin:46 textout:47 textrecv:2414 textsend:2415
oid 26 4 t b N t i p 0 0 1028 oid
    oidin:1798 oidout:1799 oidrecv:2418 oidsend:2419
tid 27 6 f b U f s p 0 0 1010 tid
    tidin:48 tidout:49 tidrecv:2438 tidsend:2439
xid 28 4 t b U f i p 0 0 1011 xid
    xidin:50 xidout:51 xidrecv:2440 xidsend:2441
cid 29 4 t b U f i p 0 0 1012 cid
    cidin:52 cidout:53 cidrecv:2442 cidsend:2443
oidvector 30 -1 f b A f i p 0 26 1013 oidvector
    oidvectorin:54 oidvectorout:55 oidvectorrecv:2420 oidvectorsend:2421
json 114 -1 f b U f i x 0 0 199 json
    json_in:321 json_out:322 json_recv:323 json_send:324
xml 142 -1 f b U f i x 0 0 143 xml
    xml_in:2893 xml_out:2894 xml_recv:2898 xml_send:2899
pg_node_tree 194 -1 f b Z f i x 100 0 0 pg_node_tree
    pg_node_tree_in:195 pg_node_tree_out:196 pg_node_tree_recv:197 pg_node_tree_send:198
float4 700 4 t b N f i p 0 0 1021 real
    float4in:200 float4out:201 float4recv:2424 float4send:2425
float8 701 8 t b N t d p 0 0 1022 double_precision
    float8in:214 float8out:215 float8recv:2426 float8send:2427
unknown 705 -2 f p X f c p 0 0 0 unknown
    unknownin:109 unknownout:110 unknownrecv:2416 unknownsend:2417
money 790 8 t b N f d p 0 0 791 money
    cash_in:886 cash_out:887 cash_recv:2492 cash_send:2493
inet 869 -1 f b I t i m 0 0 1041 inet
    inet_in:910 inet_out:911 inet_recv:2496 inet_send:2497
aclitem 1033 12 f b U f i p 0 0 1034 aclitem
    aclitemin:1031 aclitemout:1032
bpchar 1042 -1 f b S f i x 100 0 1014 character
    bpcharin:1044 bpcharout:1045 bpcharrecv:2430 bpcharsend:2431
    bpchartypmodin:2913 bpchartypmodout:2914
varchar 1043 -1 f b S f i x 100 0 1015 character_varying
    varcharin:1046 varcharout:1047 varcharrecv:2432 varcharsend:2433
    varchartypmodin:2915 varchartypmodout:2916
date 1082 4 t b D f i p 0 0 1182 date
    date_in:1084 date_out:1085 date_recv:2468 date_send:2469
time 1083 8 t b D f d p 0 0 1183 time_without_time_zone
    time_in:1143 time_out:1144 time_recv:2470 time_send:2471
    timetypmodin:2909 timetypmodout:2910
timestamp 1114 8 t b D f d p 0 0 1115 timestamp_without_time_zone
    timestamp_in:1312 timestamp_out:1313 timestamp_recv:2474 timestamp_send:2475
    timestamptypmodin:2905 timestamptypmodout:2906
timestamptz 1184 8 t b D t d p 0 0 1185 timestamp_with_time_zone
    timestamptz_in:1150 timestamptz_out:1151 timestamptz_recv:2476 timestamptz_send:2477
    timestamptztypmodin:2907 timestamptztypmodout:2908
interval 1186 16 f b T t d p 0 0 1187 interval
    interval_in:1160 interval_out:1161 interval_recv:2478 interval_send:2479
    intervaltypmodin:2903 intervaltypmodout:2904
timetz 1266 12 f b D f d p 0 0 1270 time_with_time_zone
    timetz_in:1350 timetz_out:1351 timetz_recv:2472 timetz_send:2473
    timetztypmodin:2911 timetztypmodout:2912
bit 1560 -1 f b V f i x 0 0 1561 bit
    bit_in:1564 bit_out:1565 bit_recv:2456 bit_send:2457
    bittypmodin:2919 bittypmodout:2920
varbit 1562 -1 f b V t i x 0 0 1563 bit_varying
    varbit_in:1579 varbit_out:1580 varbit_recv:2458 varbit_send:2459
    varbittypmodin:2902 varbittypmodout:2921
numeric 1700 -1 f b N f i m 0 0 1231 numeric
    numeric_in:1701 numeric_out:1702 numeric_recv:2460 numeric_send:2461
    numerictypmodin:2917 numerictypmodout:2918
refcursor 1790 -1 f b U f i x 0 0 2201 refcursor
    textin:46 textout:47 textrecv:2414 textsend:2415
regprocedure 2202 4 t b N f i p 0 0 2207 regprocedure
    regprocedurein:2212 regprocedureout:2213 regprocedurerecv:2446 regproceduresend:2447
regoper 2203 4 t b N f i p 0 0 2208 regoper
    regoperin:2214 regoperout:2215 regoperrecv:2448 regopersend:2449
regoperator 2204 4 t b N f i p 0 0 2209 regoperator
    regoperatorin:2216 regoperatorout:2217 regoperatorrecv:2450 regoperatorsend:2451
regclass 2205 4 t b N f i p 0 0 2210 regclass
    regclassin:2218 regclassout:2219 regclassrecv:2452 regclasssend:2453
regtype 2206 4 t b N f i p 0 0 2211 regtype
    regtypein:2220 regtypeout:2221 regtyperecv:2454 regtypesend:2455
record 2249 -1 f p P f d x 0 0 2287 record
    record_in:2290 record_out:2291 record_recv:2402 record_send:2403
cstring 2275 -2 f p P f c p 0 0 1263 cstring
    cstring_in:2292 cstring_out:2293 cstring_recv:2500 cstring_send:2501
any 2276 4 t p P f i p 0 0 0 "any"
    any_in:2294 any_out:2295
anyarray 2277 -1 f p P f d x 0 0 0 anyarray
    anyarray_in:2296 anyarray_out:2297 anyarray_recv:2502 anyarray_send:2503
void 2278 4 t p P f i p 0 0 0 void
    void_in:2298 void_out:2299 void_recv:3120 void_send:3121
trigger 2279 4 t p P f i p 0 0 0 trigger
    trigger_in:2300 trigger_out:2301
internal 2281 8 t p P f d p 0 0 0 internal
    internal_in:2304 internal_out:2305
anyelement 2283 4 t p P f i p 0 0 0 anyelement
    anyelement_in:2312 anyelement_out:2313
uuid 2950 16 f b U f c p 0 0 2951 uuid
    uuid_in:2952 uuid_out:2953 uuid_recv:2961 uuid_send:2962
pg_lsn 3220 8 t b U f d p 0 0 3221 pg_lsn
    pg_lsn_in:3229 pg_lsn_out:3230 pg_lsn_recv:3238 pg_lsn_send:3239
jsonb 3802 -1 f b U f i x 0 0 3807 jsonb
    jsonb_in:3806 jsonb_out:3804 jsonb_recv:3805 jsonb_send:3803
regnamespace 4089 4 t b N f i p 0 0 4090 regnamespace
    regnamespacein:4084 regnamespaceout:4085 regnamespacerecv:4087 regnamespacesend:4088
regrole 4096 4 t b N f i p 0 0 4097 regrole
    regrolein:4098 regroleout:4092 regrolerecv:4094 regrolesend:4095
regcollation 4191 4 t b N f i p 0 0 4192 regcollation
    regcollationin:4193 regcollationout:4194 regcollationrecv:4196 regcollationsend:4197
xid8 5069 8 t b U f d p 0 0 271 xid8
    xid8in:5070 xid8out:5081 xid8recv:5082 xid8send:5083
"""

# What all array types share: name and oid of their functions.
ARRAY_FUNCTIONS = {"in": 750, "out": 751, "recv": 2400, "send": 2401}
ARRAY_SUBSCRIPT_HANDLER = 6179
ROLES_OF_FUNCTIONS = ("in", "out", "recv", "send", "modin", "modout")
# The columns of pg_type that hold them.
FUNCTION_COLUMNS = ("typinput", "typoutput", "typreceive", "typsend", "typmodin", "typmodout")


@dataclass(frozen=True, slots=True)
class SystemType:
    """One row of pg_type.

    Args:
        oid, name, length, by_value, kind, category, preferred, align, storage, collation, element,
            array: the columns oid, typname, typlen, typbyval, typtype, typcategory, typispreferred,
            typalign, typstorage, typcollation, typelem, typarray.
        shown: what format_type says without a modifier.
        functions: oid by role (ROLES_OF_FUNCTIONS), where there is one.
    """

    oid: int
    name: str
    length: int
    by_value: bool
    kind: str
    category: str
    preferred: bool
    align: str
    storage: str
    collation: int
    element: int
    array: int
    shown: str
    functions: dict[str, int]


def _read() -> Iterator[tuple[SystemType, dict[str, int]]]:
    """The types of the text above, each with its functions by name."""
    rows: list[tuple[list[str], list[str]]] = []
    for line in PG_TYPES.strip().splitlines():
        if line.startswith(" "):
            rows[-1][1].extend(line.split())
        else:
            rows.append((line.split(), []))
    for words, below in rows:
        pairs = [pair.rsplit(":", 1) for pair in below]
        oids = [int(oid) for _, oid in pairs]
        # Types without receive and send have only the first two; those with a modifier have all six.
        yield (
            SystemType(
                int(words[1]), words[0], int(words[2]), words[3] == "t", words[4], words[5],
                words[6] == "t", words[7], words[8], int(words[9]), int(words[10]), int(words[11]),
                words[12].replace("_", " ") if words[0] != words[12] else words[12],
                dict(zip(ROLES_OF_FUNCTIONS, oids, strict=False)),
            ),
            {name: int(oid) for name, oid in pairs},
        )  # fmt: skip


def _array_of(element: SystemType) -> SystemType:
    modifiers = {role: oid for role, oid in element.functions.items() if role.startswith("mod")}
    kind, category = ("p", "P") if element.name == "record" else ("b", "A")
    return SystemType(
        element.array, f"_{element.name}", -1, False, kind, category, False,
        "d" if element.align == "d" else "i", "x", element.collation, element.oid, 0,
        f"{element.shown}[]", ARRAY_FUNCTIONS | modifiers,
    )  # fmt: skip


SCALARS: tuple[SystemType, ...] = tuple(found for found, _ in _read())
ARRAYS: tuple[SystemType, ...] = tuple(_array_of(found) for found in SCALARS if found.array)
TYPES: tuple[SystemType, ...] = SCALARS + ARRAYS
BY_NAME: dict[str, SystemType] = {found.name: found for found in TYPES}
# Other names that SQL has for types.
ALIASES: dict[str, int] = {
    "int": 23, "decimal": 1700, "dec": 1700, "float": 701, "char": 1042, "timestamp": 1114, "time": 1083,
    "string": 25,
}  # fmt: skip
# Names by which SQL calls a type: typname, the name that format_type shows, and the others.
OID_OF_NAME: dict[str, int] = {
    name: found.oid for found in TYPES for name in (found.name, found.shown, found.shown.strip('"'))
} | ALIASES

# Input and output functions by name: what `'array_in'::regproc` is.
FUNCTION_OIDS: dict[str, int] = {f"array_{role}": oid for role, oid in ARRAY_FUNCTIONS.items()} | {
    name: oid for _, functions in _read() for name, oid in functions.items()
}
