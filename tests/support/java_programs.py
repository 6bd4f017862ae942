"""The words by which tests start Java: programs that end soon are slower with the compilers of a server."""

from __future__ import annotations

SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JAVA = ["java", *SOON.split()]
JAVAC = ["javac", *(f"-J{option}" for option in SOON.split())]
