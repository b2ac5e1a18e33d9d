"""The laboratory: theorems, tasks, studies and pages. It uses the library; the library never
imports it.
"""
