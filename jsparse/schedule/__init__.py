# SPDX-License-Identifier: Apache-2.0
"""Decisions: output format (`infer`), contraction pairs (`split`), schedule (`auto`, or the
user's `directives`).
"""
