"""The screens. Each lays out widgets and hands them their part of the View."""
