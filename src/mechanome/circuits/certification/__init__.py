"""Certificates: which parts of a circuit are proved not to hang on single examples (paper 26)."""

from mechanome.circuits.certification.bounds import CORRECTIONS, Level, fewest_masks
from mechanome.circuits.certification.certificate import DECISIONS, Certificate
from mechanome.circuits.certification.certifying import certify
from mechanome.circuits.certification.controls import random_abstention, same_size
from mechanome.circuits.certification.discovery import Discoverer, Rule, Scored
from mechanome.circuits.certification.exhaustive import Neighborhood, neighborhood, share_of_masks
from mechanome.circuits.certification.files import load_certificate, save_certificate
from mechanome.circuits.certification.functions import Function
from mechanome.circuits.certification.sections import certificate_section

__all__ = [
    "CORRECTIONS",
    "DECISIONS",
    "Certificate",
    "Discoverer",
    "Function",
    "Level",
    "Neighborhood",
    "Rule",
    "Scored",
    "certificate_section",
    "certify",
    "fewest_masks",
    "load_certificate",
    "neighborhood",
    "random_abstention",
    "same_size",
    "save_certificate",
    "share_of_masks",
]
