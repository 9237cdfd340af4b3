# SPDX-License-Identifier: Apache-2.0
"""The two intermediate representations: index notation (`index`, what to compute) and loop IR
(`loop`, how).
"""
